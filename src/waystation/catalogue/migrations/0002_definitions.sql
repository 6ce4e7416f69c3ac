-- Versioned definitions of what a project has: topics first, later what stands on them.
CREATE TABLE definition (
  kind TEXT NOT NULL,
  project TEXT NOT NULL REFERENCES project (name),
  name TEXT NOT NULL,
  version INTEGER NOT NULL,
  body BLOB NOT NULL,
  changed_ms INTEGER NOT NULL,
  PRIMARY KEY (kind, project, name)
) STRICT;
