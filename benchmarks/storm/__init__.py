"""Whether the controller stands a storm of webhooks: nothing lost, nothing refused, and soon enough."""
