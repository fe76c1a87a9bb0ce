"""``metrics.csv`` of Lightning's CSVLogger."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainswitch_controller.replay.model import Row
from trainswitch_controller.replay.readers import read

WRITTEN = """\
epoch,grad_2.0_norm/l.bias,grad_2.0_norm_total,lr-AdamW,lr-AdamW-momentum,step,train_loss_epoch,train_loss_step,val_acc,val_loss
,,,0.01,0.9,1,,,,
0,0.5,1.25,,,1,,2.5,,
,,,0.02,0.9,3,,,,
0,0.25,1.5,,,3,,2.25,,
0,,,,,3,,,0.5,2.0
0,,,,,3,2.375,,,
"""
"""As Lightning 2.6 writes an epoch of four steps with a LearningRateMonitor, logging every second one."""

ROWS = (
    Row(step=1, epoch=0.0, loss=2.5, grad_norm=1.25, learning_rate=0.01),
    Row(step=3, epoch=0.0, loss=2.25, grad_norm=1.5, learning_rate=0.02),
    Row(step=3, epoch=0.0, evaluations={"eval_loss": 2.0, "eval_accuracy": 0.5}),
)


def test_the_lines_of_a_step_are_put_together(tmp_path: Path) -> None:
    """Rates stand on lines of their own there; the mean of an epoch is no step, a momentum no rate."""
    path = tmp_path / "gan" / "version_3" / "metrics.csv"
    path.parent.mkdir(parents=True)
    path.write_text(WRITTEN)
    (run,) = read([tmp_path]).runs
    assert (run.id, run.rows) == ("gan-version_3", ROWS)


def test_the_format_can_be_forced(tmp_path: Path) -> None:
    """Read as plain CSV, every line is a row."""
    path = tmp_path / "metrics.csv"
    path.write_text(WRITTEN)
    assert len(read([path], form="csv").runs[0].rows) == 6


def test_what_lightning_writes_is_read(tmp_path: Path) -> None:
    """The real logger's file is understood, where the library is installed."""
    loggers = pytest.importorskip("lightning.pytorch.loggers")
    logger = loggers.CSVLogger(tmp_path, "gan", version=3)
    logger.log_metrics({"lr-AdamW": 0.01}, step=1)
    logger.log_metrics({"epoch": 0, "train_loss_step": 2.5, "grad_2.0_norm_total": 1.25}, step=1)
    logger.log_metrics({"lr-AdamW": 0.02}, step=3)
    logger.log_metrics({"epoch": 0, "train_loss_step": 2.25, "grad_2.0_norm_total": 1.5}, step=3)
    logger.log_metrics({"epoch": 0, "val_loss": 2.0, "val_acc": 0.5}, step=3)
    logger.log_metrics({"epoch": 0, "train_loss_epoch": 2.375}, step=3)
    logger.save()
    (run,) = read([tmp_path]).runs
    assert run.rows == ROWS
