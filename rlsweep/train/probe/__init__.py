"""What a job's process finds on its node: checks that each run in a process of their own, with a time limit."""
