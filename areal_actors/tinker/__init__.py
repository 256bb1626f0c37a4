"""`areal-actors serve tinker`: a server of Thinking Machines' Tinker API on this machine."""
