"""The shell: everything that waits, and everything that talks to a clock, a thread, a socket or a store."""
