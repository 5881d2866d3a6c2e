#!/bin/sh
# Runs once, when the database folder is empty: the owner of the tables, and the role of the running processes.
set -eu
psql --set ON_ERROR_STOP=1 --set owner_password="$STEELYARD_OWNER_PASSWORD" \
    --set app_password="$STEELYARD_APP_PASSWORD" --username "$POSTGRES_USER" --dbname postgres <<'SQL'
CREATE ROLE steelyard_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE steelyard_app LOGIN PASSWORD :'app_password';
CREATE DATABASE steelyard OWNER steelyard_owner;
SQL
