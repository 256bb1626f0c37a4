"""Who starts the processes of a run and keeps them alive, and what each of them is."""
