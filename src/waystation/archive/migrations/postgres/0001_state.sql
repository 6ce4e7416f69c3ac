-- States of transactions; what they are found by, and their hash in two pieces.
CREATE TABLE state (
  id text COLLATE "C" PRIMARY KEY,
  owner text COLLATE "C" NOT NULL,
  external_id text COLLATE "C" NOT NULL,
  pipeline text COLLATE "C" NOT NULL,
  status text COLLATE "C" NOT NULL,
  step text COLLATE "C" NOT NULL,
  version bigint NOT NULL,
  wake_ms bigint NOT NULL,
  deadline_ms bigint NOT NULL,
  started_ms bigint NOT NULL,
  updated_ms bigint NOT NULL,
  completed_ms bigint NOT NULL,
  packed bytea NOT NULL,
  fields bytea NOT NULL
);

CREATE INDEX state_by_external_id ON state (owner, external_id) WHERE external_id <> '';
CREATE INDEX state_by_status ON state (owner, status, updated_ms, id);
CREATE INDEX state_by_completion ON state (completed_ms) WHERE completed_ms > 0;
