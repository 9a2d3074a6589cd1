-- Which transaction last changed what the scheduler reads of a job: the leader reads what changed since its last
-- snapshot, not the whole queue again. Steps and checkpoints do not count, they change too often and nothing that waits.

ALTER TABLE jobs ADD COLUMN changed xid8 NOT NULL DEFAULT '0';
ALTER TABLE jobs ALTER COLUMN changed SET DEFAULT pg_current_xact_id();
CREATE INDEX jobs_changed ON jobs (changed);

CREATE FUNCTION stamp_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.changed := pg_current_xact_id();
  RETURN NEW;
END $$;
CREATE TRIGGER jobs_stamp BEFORE UPDATE ON jobs FOR EACH ROW
  WHEN (OLD.version <> NEW.version OR OLD.state <> NEW.state OR OLD.reason_code <> NEW.reason_code
        OR OLD.reason_message <> NEW.reason_message)
  EXECUTE FUNCTION stamp_job();
