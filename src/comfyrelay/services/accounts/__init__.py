"""Who it is for: users, tenants, tokens and what is paid."""
