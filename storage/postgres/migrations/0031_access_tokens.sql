-- Works with programs that know 21 migrations. They do not know these tokens, and refuse them.
--
-- Tokens that people make and revoke, with a role in one project (or, if it is empty, in the whole yard). Those that a server
-- was started with stay in `tokens`; one of them that is revoked has a row here, too, and counts no more.
CREATE TABLE access_tokens (
  sha256 text PRIMARY KEY,
  id text COLLATE "C" NOT NULL GENERATED ALWAYS AS (left(sha256, 16)) STORED UNIQUE,
  name text NOT NULL,
  role text NOT NULL,
  project text NOT NULL,
  creator text NOT NULL,
  create_time timestamptz NOT NULL,
  expire_time timestamptz,
  revoke_time timestamptz
);
CREATE INDEX access_tokens_by_end ON access_tokens (least(expire_time, revoke_time));
CREATE INDEX access_tokens_of_projects ON access_tokens (project, id);
CREATE INDEX tokens_by_id ON tokens (left(sha256, 16) COLLATE "C");
