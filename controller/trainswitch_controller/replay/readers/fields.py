"""Which value of a log is the loss, the gradient norm, …: by its name, or as the user says."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from trainswitch_controller.errors import NotALog, RecordedRunError

STEP = "step"

_NAMES: dict[str, tuple[str, ...]] = {
    STEP: (
        *(
            "train_global_step",
            "trainer_global_step",
            "global_step",
            "step",
            "iteration",
            "iter",
            "num_updates",
        ),
        *("steps", "train_step"),
    ),
    "epoch": ("epoch", "train_epoch", "progress_epoch"),
    "loss": (
        *(
            "loss",
            "train_loss",
            "training_loss",
            "loss_train",
            "loss_training",
            "train_loss_step",
            "loss_step",
        ),
        *("lm_loss", "train_lm_loss", "lm_loss_training_lm_loss", "loss_value", "loss_train_total"),
        *("loss_metrics_global_avg_loss", "train_crossentropyloss", "train_total_loss", "total_loss"),
        *("train_samples_train_loss", "train_batch_loss", "batch_loss", "train_cross_entropy", "nll_loss"),
        *("train_loss_epoch", "loss_epoch"),
    ),
    "grad_norm": (
        *("grad_norm", "train_grad_norm", "gradient_norm", "train_gradient_norm", "gradients_norm", "gnorm"),
        *("grad_2_0_norm_total", "grad_norm_total", "total_grad_norm", "optim_total_grad_norm"),
        *("l2_norm_grad_global", "global_grad_norm", "train_global_grad_norm", "global_norm"),
    ),
    "learning_rate": (
        *(
            "learning_rate",
            "train_learning_rate",
            "lr",
            "train_lr",
            "optim_learning_rate",
            "train_samples_lr",
        ),
        *("optim_learning_rate_group0", "current_lr", "schedule_learning_rate"),
    ),
    "tokens_per_s": (
        *("tokens_per_s", "tokens_per_second", "tokens_per_sec", "tok_per_sec", "throughput_tps", "tps"),
        *("throughput_tokens_per_second", "throughput_device_tokens_per_second", "train_tokens_per_second"),
        "time_tokens_per_second",
    ),
    "step_time_s": (
        *("step_time_s", "step_time", "step_seconds", "time_step_seconds", "iteration_time", "iter_time"),
        *("train_step_time", "throughput_duration", "time_metrics_end_to_end_s"),
    ),
}
"""Field → names in order of preference, as `_plain` writes them.

They are those of Hugging Face, Lightning, Megatron, torchtitan, Levanter, Composer, OLMo, DeepSpeed and
fairseq, and of this product's own files.
"""

_SPLITS = ("eval", "val", "valid", "validation", "dev", "test")
_METRICS: dict[str, tuple[str, ...]] = {
    "loss": ("loss", "total_loss", "lm_loss", "ce_loss", "nll_loss", "cross_entropy"),
    "accuracy": ("accuracy", "acc", "acc1", "top1", "acc_top1", "token_accuracy"),
    "perplexity": ("perplexity", "ppl"),
    "error": ("error", "error_rate"),
    "auc": ("auc", "auroc"),
    "iou": ("iou", "miou", "mean_iou"),
    "map": ("map", "mean_average_precision"),
    **{name: (name,) for name in ("f1", "bleu", "wer", "cer", "mae", "mse", "rmse", "precision", "recall")},
}
"""Evaluation metrics whose names tell which values are better. Others are taken only if the user says so."""

_EVALUATION = re.compile(r"eval_[a-z0-9_]{1,60}")
_RATE_PREFIXES = ("lr_", "learning_rate_")
_NOT_RATES = ("momentum", "weight_decay")

_SHOWN_NAMES = 12


def parse_columns(assignments: Iterable[str]) -> dict[str, str]:
    """Return field → name in the log of texts such as ``loss=train/ce``.

    Raises:
        RecordedRunError: a text has no ``=``, names a field that does not exist, or one for the second time.
    """
    columns: dict[str, str] = {}
    for assignment in assignments:
        field, sign, name = assignment.partition("=")
        if not sign or not name:
            raise RecordedRunError(f"column {assignment!r} says nothing: write FIELD=NAME.")
        if field not in _NAMES and not _EVALUATION.fullmatch(field):
            near = difflib.get_close_matches(field, (*_NAMES, "eval_loss", "eval_accuracy"), n=1)
            others = f"use one of {', '.join(_NAMES)}, or eval_<metric>."
            hint = f"did you mean {near[0]!r}?" if near else others
            raise RecordedRunError(f"column {assignment!r}: there is no field {field!r}: {hint}")
        if field in columns:
            raise RecordedRunError(f"column {field!r} is given more than once: give it one name.")
        columns[field] = name
    return columns


def choose(names: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return field → the name that a log has for it; fields that it does not have are left out.

    Args:
        names: all names in the log.
        given: field → name, as the user says; it goes before every well-known name, if the log has it.
    """
    names = list(dict.fromkeys(names))
    chosen = {field: name for field, name in given.items() if name in names}
    taken = set(chosen.values())
    found = {_plain(name): name for name in reversed(names) if name not in taken}
    wanted = {**_NAMES, **{f"eval_{metric}": _evaluation_names(metric) for metric in _METRICS}}
    for field, candidates in wanted.items():
        name = next((found[candidate] for candidate in candidates if candidate in found), None)
        if field == "learning_rate" and name is None:
            name = next((name for plain, name in sorted(found.items()) if _is_rate(plain)), None)
        if name is not None:
            chosen.setdefault(field, name)
    return chosen


def require_values(fields: Mapping[str, str], names: Iterable[str], where: str) -> None:
    """Check that a log has something to judge a run by.

    Args:
        fields: as `choose` returned them.
        names: all names in the log.
        where: the log, for the sentence.

    Raises:
        NotALog: it has neither a loss, nor a gradient norm, nor an evaluation.
    """
    if any(field in {"loss", "grad_norm"} or field.startswith("eval_") for field in fields):
        return
    names = list(dict.fromkeys(names))
    more = ", …" if len(names) > _SHOWN_NAMES else ""
    shown = ", ".join(repr(name[:40]) for name in names[:_SHOWN_NAMES]) or "nothing"
    raise NotALog(
        f"{where} is no log of a run: among {shown}{more} is neither a loss, nor a gradient norm, nor an "
        "evaluation; if one of them is, say so with --column loss=NAME."
    )


def _plain(name: str) -> str:
    """Return `name` in small letters, with one underscore for whatever separates its words."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _evaluation_names(metric: str) -> tuple[str, ...]:
    return tuple(
        name
        for split in _SPLITS
        for tail in _METRICS[metric]
        for name in (
            *(f"{split}_{tail}", f"{tail}_{split}", f"{split}_{tail}_epoch"),
            *(f"evaluation_{split}_{tail}", f"evaluation_{tail}"),  # as our own TensorBoard files have it
        )
    )


def _is_rate(plain: str) -> bool:
    """Whether a name is of the learning rate of some optimizer or parameter group, as in ``lr-AdamW/pg1``."""
    return plain.startswith(_RATE_PREFIXES) and not plain.endswith(_NOT_RATES)
