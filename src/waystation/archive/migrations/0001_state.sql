-- States of transactions; what they are found by, and their hash in two pieces.
CREATE TABLE state (
  id TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  external_id TEXT NOT NULL,
  pipeline TEXT NOT NULL,
  status TEXT NOT NULL,
  step TEXT NOT NULL,
  version INTEGER NOT NULL,
  wake_ms INTEGER NOT NULL,
  deadline_ms INTEGER NOT NULL,
  started_ms INTEGER NOT NULL,
  updated_ms INTEGER NOT NULL,
  completed_ms INTEGER NOT NULL,
  packed BLOB NOT NULL,
  fields BLOB NOT NULL
) STRICT;

CREATE INDEX state_by_external_id ON state (owner, external_id) WHERE external_id <> '';
CREATE INDEX state_by_status ON state (owner, status, updated_ms, id);
CREATE INDEX state_by_completion ON state (completed_ms) WHERE completed_ms > 0;
