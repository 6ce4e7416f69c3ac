-- Projects, API keys, the counter by which processes notice changes, and versioned definitions.
CREATE TABLE project (
  name text COLLATE "C" PRIMARY KEY,
  created_ms bigint NOT NULL
);

CREATE TABLE api_key (
  id text COLLATE "C" PRIMARY KEY,
  project text COLLATE "C" NOT NULL REFERENCES project (name),
  scopes text NOT NULL,
  secret_hash bytea NOT NULL,
  label text NOT NULL,
  created_ms bigint NOT NULL,
  expires_ms bigint NOT NULL,
  revoked_ms bigint NOT NULL
);

CREATE TABLE generation (
  one integer PRIMARY KEY CHECK (one = 1),
  number bigint NOT NULL
);

CREATE TABLE definition (
  kind text COLLATE "C" NOT NULL,
  project text COLLATE "C" NOT NULL REFERENCES project (name),
  name text COLLATE "C" NOT NULL,
  version bigint NOT NULL,
  body bytea NOT NULL,
  changed_ms bigint NOT NULL,
  PRIMARY KEY (kind, project, name)
);

INSERT INTO generation VALUES (1, 1);
INSERT INTO project VALUES ('default', 0);
