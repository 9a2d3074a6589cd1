-- Works with programs that know 21 migrations. They do not look at it.
--
-- The certificate authority of the yard, once a server was told to make one. `sealed_key` is encrypted under a key that lies in
-- a file of the servers (server/auth/authority.h), so that a copy of the database alone signs nothing.
CREATE TABLE yard_authority (
  only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
  certificate text NOT NULL,
  sealed_key bytea NOT NULL,
  create_time timestamptz NOT NULL DEFAULT now()
);
