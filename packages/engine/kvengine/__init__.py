"""DeepSeek V4 in PyTorch, whose session state is the DSV4 payload. Knows no prompt, no HTTP, no directory."""
