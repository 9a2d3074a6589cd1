-- API tokens: SHA-256 of 256 random bits, which needs neither salt nor stretching.

CREATE TABLE tokens (
  sha256 text PRIMARY KEY,
  name text NOT NULL,
  role text NOT NULL
);
