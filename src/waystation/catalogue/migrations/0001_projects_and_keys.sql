-- Projects and API keys, and the counter by which processes notice changes.
CREATE TABLE project (
  name TEXT PRIMARY KEY,
  created_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE api_key (
  id TEXT PRIMARY KEY,
  project TEXT NOT NULL REFERENCES project (name),
  scopes TEXT NOT NULL,
  secret_hash BLOB NOT NULL,
  label TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  expires_ms INTEGER NOT NULL,
  revoked_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE generation (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  number INTEGER NOT NULL
) STRICT;

INSERT INTO generation VALUES (1, 1);
INSERT INTO project VALUES ('default', 0);
