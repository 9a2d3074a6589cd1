(to_date($1, 'YYYY_MM') + interval '1 month')::timestamptz
