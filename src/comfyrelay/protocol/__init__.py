"""The wire models of server, worker and client.

Receivers ignore unknown fields, so that either side may be newer. Only requests to the user and admin API are strict:
there an unknown field is a typo.
"""
