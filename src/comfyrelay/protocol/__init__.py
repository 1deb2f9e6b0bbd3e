"""Wire models of the server, its workers and its clients.

Receivers ignore unknown fields, so that either side may be newer. Only requests to the user and admin API are strict:
an unknown field there is an error.
"""
