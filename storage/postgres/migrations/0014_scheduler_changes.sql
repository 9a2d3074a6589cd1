-- Which transaction last changed what the scheduler looks at of a rank and of a node, as 0009 has it for jobs: the leader
-- reads what its last reading did not see. Sequences of ranks do not count but for the first, they come with every report;
-- leases are in a table of their own.
--
-- Works with programs that know 12 migrations.

ALTER TABLE ranks ADD COLUMN changed xid8 NOT NULL DEFAULT '0';
ALTER TABLE ranks ALTER COLUMN changed SET DEFAULT pg_current_xact_id();
CREATE INDEX ranks_changed ON ranks (changed);

ALTER TABLE nodes ADD COLUMN changed xid8 NOT NULL DEFAULT '0';
ALTER TABLE nodes ALTER COLUMN changed SET DEFAULT pg_current_xact_id();

CREATE FUNCTION stamp_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.changed := pg_current_xact_id();
  RETURN NEW;
END $$;
CREATE TRIGGER ranks_stamp BEFORE UPDATE ON ranks FOR EACH ROW WHEN (OLD.state <> NEW.state OR OLD.outcome <> NEW.outcome OR (OLD.acked_sequence = 0) <> (NEW.acked_sequence = 0))
  EXECUTE FUNCTION stamp_change();
CREATE TRIGGER nodes_stamp BEFORE UPDATE ON nodes FOR EACH ROW EXECUTE FUNCTION stamp_change();

-- Of a job that was cancelled and deleted between two readings, nothing else tells. Kept for a day.
CREATE TABLE deleted_jobs (
  uid text COLLATE "C" NOT NULL,
  changed xid8 NOT NULL DEFAULT pg_current_xact_id(),
  delete_time timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX deleted_jobs_changed ON deleted_jobs (changed);

-- A resumed job leaves ended_jobs, too: its trace does no harm. Months that retention removes are detached before.
CREATE FUNCTION leave_trace() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO deleted_jobs (uid) VALUES (OLD.uid);
  RETURN NULL;
END $$;
CREATE TRIGGER ended_jobs_trace AFTER DELETE ON ended_jobs FOR EACH ROW EXECUTE FUNCTION leave_trace();
