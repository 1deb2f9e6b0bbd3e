"""What goes over the wire, described once: by server, worker and client alike.

Who receives ignores fields that it does not know, so that either side may be the newer one. Only requests to the user
and admin API are strict: there an unknown field is a slip of the pen.
"""
