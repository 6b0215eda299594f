"""From a request to bytes and tokens, and from sampled bytes to events. No torch, no HTTP, no directory."""
