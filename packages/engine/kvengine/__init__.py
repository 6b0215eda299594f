"""DeepSeek V4 in PyTorch, whose session state is the DSV4 payload. Knows no prompt, no HTTP, no directory."""

try:
    import gguf  # noqa: F401
    import safetensors  # noqa: F401
    import torch  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"the engine needs the package '{missing.name}'; install it with: pip install 'ds4kv[engine]'",
        name=missing.name,
    ) from None

from .config import Config, Numerics
from .errors import EngineError
from .identity import identify
from .model import Model, load
from .sampling import Sampled, Sampler
from .session import Lease, Mark, Session

__all__ = [
    "Config",
    "EngineError",
    "Lease",
    "Mark",
    "Model",
    "Numerics",
    "Sampled",
    "Sampler",
    "Session",
    "identify",
    "load",
]
