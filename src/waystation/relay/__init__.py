"""The relay: the door of agents. DIDComm envelopes come in, and wait in a pool for their worker."""
