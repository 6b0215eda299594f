"""The bytes, the directories and the policy of DeepSeek-V4 KV checkpoints. Knows no model, no HTTP, no terminal."""
