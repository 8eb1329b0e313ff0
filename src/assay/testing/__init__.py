"""Public contract suites for algorithms, buffers and sinks."""
