"""`areal-actors tinker`: a server of Thinking Machines' Tinker API on this machine."""
