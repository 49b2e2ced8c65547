"""What the operating system gives and takes: files, signals, memory, threads, and errors."""
