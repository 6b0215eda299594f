"""Which model a file belongs to, as far as files tell: quant bits, model id, shape, and a fingerprint of the weights if kept."""

from __future__ import annotations

from dataclasses import dataclass

from kvformat.header import Header
from kvformat.shapes import Shape
from kvformat.verdict import Refusal, Verdict


@dataclass(frozen=True, slots=True)
class Identity:
    """What a reader is. `fingerprint` names its weights (hex, empty: unknown); `reject_other_quant` as ds4's option."""

    shape: Shape
    quant_bits: int
    fingerprint: str = ""
    reject_other_quant: bool = False

    @property
    def name(self) -> str:
        """The directory name for files that must not share a name with another model's."""
        s = self.shape
        parts = [
            f"model{s.model_id}",
            f"q{self.quant_bits}",
            f"{s.layers}x{s.head_dim}x{s.vocab}",
            self.fingerprint[:16],
        ]
        return "-".join(part for part in parts if part)

    def refuses(self, header: Header, fingerprint: str = "") -> Refusal | None:
        """Why a sound file of this header and recorded fingerprint is not ours; None if it is.

        Files without a fingerprint (all that ds4 wrote) pass: only their shape and quant bits are known.
        """
        if header.model_id != self.shape.model_id:
            return Refusal(Verdict.DIFFERENT_MODEL, f"model id {header.model_id}")
        if self.reject_other_quant and header.quant_bits != self.quant_bits:
            return Refusal(Verdict.QUANT_DIFFERS, f"quant {header.quant_bits}")
        if fingerprint and self.fingerprint and fingerprint != self.fingerprint:
            return Refusal(Verdict.DIFFERENT_MODEL, "other weights")
        return None
