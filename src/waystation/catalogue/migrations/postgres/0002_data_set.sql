-- Ids of the data sets of the store, newest first, with blanks between them; empty at first.
CREATE TABLE data_set (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  ids TEXT NOT NULL
);

INSERT INTO data_set VALUES (1, '');
