"""The rendezvous as a pure machine: values in, values out, no clock, thread, log, random or I/O."""
