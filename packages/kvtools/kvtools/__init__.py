"""kvtool: what is in a checkpoint directory, whether it is sound, and why a file was not used."""
