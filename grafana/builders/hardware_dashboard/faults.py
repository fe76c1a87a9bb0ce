"""Row "Faults": throttling and the errors that cards report."""

from __future__ import annotations

from grafana.builders.common import PanelBuilder, bars, increase, query, recorded, series, timeline

TITLE = "Faults"


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    return [
        timeline(
            "Throttling",
            "What holds each card's clocks down, without idle clocks and clocks that somebody has set. The "
            "power cap is usual under full load; heat and missing power are not.",
            query(
                "A",
                "max by (rank, gpu, reason) ("
                + series(
                    "train_gpu_throttle_active",
                    'reason!~"idle|application_clocks|sync_boost|display_clocks"',
                )
                + ") == 1",
                "{{reason}}, rank {{rank}} GPU {{gpu}}",
            ),
        ),
        timeline(
            "XID errors of the last 15 minutes",
            "Codes that the driver reported, and for how long the alert tells of them; critical ones need a "
            "reset of the card or a new start.",
            query(
                "A",
                "max by (rank, gpu, xid, severity) ("
                + recorded("gpu:train_gpu_xid_recent:timestamp_seconds")
                + ") > bool 0",
                "XID {{xid}} ({{severity}}), rank {{rank}} GPU {{gpu}}",
            ),
        ),
        bars(
            "XID errors by code",
            "XID errors counted, of codes known from the start.",
            "none",
            query("A", f"sum by (xid) ({increase('train_gpu_xid_errors_total')}) > 0", "XID {{xid}}"),
        ),
        bars(
            "Memory errors",
            "ECC errors of device memory: corrected ones do no harm by themselves, others lose data.",
            "none",
            query("A", f"sum by (type) ({increase('train_gpu_ecc_errors_total')})", "{{type}}"),
        ),
        bars(
            "NVLink errors",
            "Errors of NVLink connections: checksum errors are repeated at once, recoveries take long.",
            "none",
            query("A", f"sum by (type) ({increase('train_gpu_nvlink_errors_total')})", "{{type}}"),
        ),
    ]
