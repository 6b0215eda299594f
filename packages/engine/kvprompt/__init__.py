"""From a request in any dialect to bytes and tokens, and from sampled bytes to events. No torch, no HTTP, no directory."""
