"""An AWS account that is simulated by moto."""

from tests.support.aws import account, clients, moto_behind_proxy, proxy, shared_clients

__all__ = ["account", "clients", "moto_behind_proxy", "proxy", "shared_clients"]
