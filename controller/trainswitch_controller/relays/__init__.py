"""Relays: Alertmanager's webhooks as short texts, for gateways with a format of their own (SMS, robots)."""

from trainswitch_controller.relays.gateway import Gateway
from trainswitch_controller.relays.settings import RelaySettings, load_relays
from trainswitch_controller.relays.text import message

__all__ = ["Gateway", "RelaySettings", "load_relays", "message"]
