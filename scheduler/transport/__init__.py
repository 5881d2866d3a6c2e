"""HTTP/1.1 to engines: one pooled client that works by callbacks; streams, deadlines, cancellation."""
