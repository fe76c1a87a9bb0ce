"""A small GPT on real English text: the model and the data of the example trainer."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import nn
from torch.nn import functional


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """Shape of the model."""

    vocabulary: int = 128
    """Number of tokens; the text is ASCII, one token a character."""
    context: int = 64
    """Tokens a sequence."""
    layers: int = 2
    heads: int = 4
    width: int = 96


class Block(nn.Module):
    """Pre-norm causal self-attention, then a feed-forward layer."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = nn.Linear(config.width, 3 * config.width)
        self.projection = nn.Linear(config.width, config.width)
        self.norm2 = nn.LayerNorm(config.width)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, context, width) to the same shape."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.attention(self.norm1(x)).split(width, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        y: torch.Tensor = x + self.feed_forward(self.norm2(x))
        return y


class GPT(nn.Module):
    """A decoder-only transformer with tied embeddings."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                residual = name.endswith(("projection.weight", "feed_forward.2.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers) if residual else 0.02)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy in nats of (batch, context) token ids against their successors."""
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class TextBatches:
    """Random windows of the text, in an order that the seed fixes; without a `length` they never end."""

    def __init__(
        self, text: torch.Tensor, *, batch: int, context: int, seed: int, length: int | None = None
    ) -> None:
        self._text = text
        self._batch = batch
        self._context = context
        self._length = length
        self._seed = seed
        self.position = 0

    def __iter__(self) -> TextBatches:
        return self

    def __next__(self) -> torch.Tensor:
        """Return the next (batch, context + 1) token ids."""
        if self.position == self._length:
            raise StopIteration
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self.position)
        self.position += 1
        starts = torch.randint(len(self._text) - self._context - 1, (self._batch,), generator=generator)
        return self._text[starts[:, None] + torch.arange(self._context + 1)]

    def state_dict(self) -> dict[str, int]:
        """Return the position."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go back to a position."""
        self.position = state["position"]


def english_text() -> tuple[torch.Tensor, torch.Tensor]:
    """Return (training, validation) token ids of 700 kB of English: the manual in CPython's own pydoc."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
    ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().clamp(max=127)
    split = len(ids) * 9 // 10
    return ids[:split], ids[split:]
