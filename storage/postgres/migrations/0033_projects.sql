-- Works with programs that know 21 migrations. They run the ranks of every project as their agents run.
--
-- What admins say of projects. unix_user: as whom the ranks of its jobs run on nodes; empty: as the agent.
CREATE TABLE projects (
  name text COLLATE "C" PRIMARY KEY,
  unix_user text NOT NULL,
  update_time timestamptz NOT NULL
);
