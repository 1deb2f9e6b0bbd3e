"""Tests use an AWS account that moto simulates."""

from tests.support.aws import account, clients, moto_behind_proxy, proxy, shared_clients

__all__ = ["account", "clients", "moto_behind_proxy", "proxy", "shared_clients"]
