-- Works with programs that know 21 migrations. They do not look at it: a leader of before gives projects as many slots as it can.
--
-- What the jobs of a project may have together; NULL: any number. `changed`: as 0014 has it for nodes.
ALTER TABLE projects
  ADD COLUMN max_slots integer CHECK (max_slots >= 0),
  ADD COLUMN max_jobs integer CHECK (max_jobs >= 0),
  ADD COLUMN changed xid8 NOT NULL DEFAULT '0';
ALTER TABLE projects ALTER COLUMN changed SET DEFAULT pg_current_xact_id();
CREATE INDEX projects_changed ON projects (changed);
CREATE INDEX projects_with_slot_limits ON projects (name) WHERE max_slots IS NOT NULL;
CREATE INDEX projects_with_job_limits ON projects (name) WHERE max_jobs IS NOT NULL;
CREATE TRIGGER projects_stamp BEFORE UPDATE ON projects FOR EACH ROW EXECUTE FUNCTION stamp_change();
