"""Which authority vouches for the controller, and what certificate the command line shows."""

from __future__ import annotations

import os
from typing import Any

from trainswitch_controller.cli.errors import UsageProblem

CA_VARIABLE = "TRAINSWITCH_CA_FILE"
CERT_VARIABLE = "TRAINSWITCH_CLIENT_CERT_FILE"
KEY_VARIABLE = "TRAINSWITCH_CLIENT_KEY_FILE"


def tls_of_environment() -> dict[str, Any]:
    """Return what requests is to be told about TLS: ``verify`` and ``cert``, each where it is given.

    Raises:
        UsageProblem: a file that is named does not exist, or a key is named without its certificate.
    """
    files = {name: os.environ.get(name) for name in (CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE)}
    for name, path in files.items():
        if path and not os.path.isfile(path):  # noqa: PTH113 - a text goes in, a text goes on to requests
            raise UsageProblem(f"${name} names {path!r}, where there is no file: correct it, or unset it.")
    if files[KEY_VARIABLE] and not files[CERT_VARIABLE]:
        raise UsageProblem(f"${KEY_VARIABLE} has no effect without ${CERT_VARIABLE}: set both, or neither.")
    options: dict[str, Any] = {}
    if files[CA_VARIABLE]:
        options["verify"] = files[CA_VARIABLE]
    if files[CERT_VARIABLE]:
        key = files[KEY_VARIABLE]
        options["cert"] = (files[CERT_VARIABLE], key) if key else files[CERT_VARIABLE]
    return options
