-- Works with programs that know 21 migrations. They add nothing to it.
--
-- Who changed what, in chains of one server process each (storage/base/audit_chain.h).
CREATE TABLE audit (
  chain text COLLATE "C" NOT NULL,
  sequence bigint NOT NULL,
  time timestamptz NOT NULL,
  principal text COLLATE "C" NOT NULL,
  credential text NOT NULL,
  source text NOT NULL,
  method text NOT NULL,
  resource text NOT NULL,
  outcome text NOT NULL,
  detail text NOT NULL,
  count bigint NOT NULL,
  digest text NOT NULL,
  PRIMARY KEY (chain, sequence)
);
CREATE INDEX audit_by_time ON audit (time, chain, sequence);
CREATE INDEX audit_by_principal ON audit (principal, time, chain, sequence);

-- Against accidents: whoever owns the table can drop this trigger, and is found by the digests.
CREATE FUNCTION keep_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE 'entries of the audit are never changed or removed';
END $$;
CREATE TRIGGER audit_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION keep_audit();
