"""An AWS account, as moto serves it."""

from tests.support.aws import account, clients, clients_made_once, moto_behind_proxy, proxy

__all__ = ["account", "clients", "clients_made_once", "moto_behind_proxy", "proxy"]
