"""The interface to the operating system: files, signals, memory, threads, and errors."""
