"""Tiny GPTs of Megatron-core, and how many ranks divide them in which way."""

from __future__ import annotations

from dataclasses import dataclass, field

VOCABULARY = 90
PADDED = 96
PADDED_NAMES = frozenset({"embedding.word_embeddings.weight", "output_layer.weight"})
SETTINGS: dict[str, dict[str, int | bool]] = {
    # The original: a learned position for each token, biases, the output layer tied to the embedding.
    "gpt": {"layers": 4, "tied": True},
    # Gated, with grouped queries and without biases.
    "llama": {"layers": 4, "tied": False, "gated": True, "groups": 4},
    # The same with experts.
    "mixtral": {"layers": 2, "tied": False, "gated": True, "groups": 4, "experts": 4},
}


@dataclass(frozen=True)
class MegatronCase:
    """A model of `SETTINGS` under these degrees; ``chunks`` of the layers to a stage."""

    family: str
    world: int
    tp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int = field(default=0)
    chunks: int = 1

    @property
    def name(self) -> str:
        """The case as a folder name."""
        return f"{self.family}-{self.world}-tp{self.tp}-pp{self.pp}-ep{self.ep}-etp{self.expert_tp}-chunks{self.chunks}"

    @property
    def expert_tp(self) -> int:
        """Tensor parallelism inside an expert: that of the rest unless said otherwise."""
        return self.etp or self.tp

    @property
    def parameters(self) -> dict[str, int]:
        """Those of the ready-made patterns ``megatron-gpt``."""
        settings = SETTINGS[self.family]
        return {
            "tp": self.tp,
            "pp": self.pp,
            "dp": self.world // (self.tp * self.pp),
            "ep": self.ep,
            "etp": self.expert_tp,
            "experts": int(settings.get("experts", self.ep)),
            "gated": int(settings.get("gated", False)),
            "padded_vocab": PADDED,
            "tied": int(settings["tied"]),
            "layers": int(settings["layers"]),
            "chunks": self.chunks,
        }


DENSE: tuple[dict[str, int], ...] = (
    {"world": 2, "tp": 2},
    {"world": 2, "pp": 2},
    {"world": 4, "tp": 4},
    {"world": 4, "tp": 2},
    {"world": 4, "tp": 2, "pp": 2},
    {"world": 4, "tp": 2, "pp": 2, "chunks": 2},
    {"world": 4, "pp": 4},
)
MEGATRON_CASES = (
    *(MegatronCase(family, **degrees) for family in ("gpt", "llama") for degrees in DENSE),
    MegatronCase("mixtral", 2, tp=2),
    MegatronCase("mixtral", 2, ep=2),
    MegatronCase("mixtral", 4, tp=2, ep=2, etp=1),
    MegatronCase("mixtral", 4, tp=2, ep=2, etp=2),
    MegatronCase("mixtral", 4, ep=4),
    MegatronCase("mixtral", 4, tp=2, pp=2, ep=2, etp=1),
)
