"""Delivery: every HTTP request that leaves the product. Safe, signed, patient, fair.

The machine is complete in itself: a guard for addresses, a sender, signatures, schedules, breakers,
fair shares, a durable outbox and its deliverer. Its first users are the webhooks of channels.
Nothing is gathered here: who writes steps gets the words for requests without what sends them.
"""
