# What the Google Cloud side needs: a bucket, a repository of images, an account for the trainings, roles for Airflow.
#
#   terraform -chdir=docker init && terraform -chdir=docker apply -var project=… -var region=… -var airflow=…

variable "project" { type = string }
variable "region" { type = string }

variable "airflow" {
  type        = string
  description = "Who Airflow runs as, for example serviceAccount:airflow@my-project.iam.gserviceaccount.com"
}

provider "google" {
  project = var.project
  region  = var.region
}

resource "google_project_service" "needed" {
  for_each = toset([
    "artifactregistry.googleapis.com",
    "batch.googleapis.com",
    "compute.googleapis.com",
    "logging.googleapis.com",
  ])
  service            = each.key
  disable_on_destroy = false
}

resource "google_storage_bucket" "checkpoints" {
  name                        = "${var.project}-checkpoints"
  location                    = var.region
  uniform_bucket_level_access = true

  # Multipart uploads that a lost machine left behind cost money and are in no listing.
  lifecycle_rule {
    action { type = "AbortIncompleteMultipartUpload" }
    condition { age = 7 }
  }
}

resource "google_artifact_registry_repository" "images" {
  repository_id = "images"
  location      = var.region
  format        = "DOCKER"
  depends_on    = [google_project_service.needed]
}

# The trainings: read and write checkpoints, report to Batch, write logs, pull images.
resource "google_service_account" "training" {
  account_id   = "resume-training"
  display_name = "Trainings on Batch"
}

resource "google_storage_bucket_iam_member" "training" {
  bucket = google_storage_bucket.checkpoints.name
  role   = "roles/storage.objectUser"
  member = google_service_account.training.member
}

resource "google_project_iam_member" "training" {
  for_each = toset(["roles/batch.agentReporter", "roles/logging.logWriter", "roles/artifactregistry.reader"])
  project  = var.project
  role     = each.key
  member   = google_service_account.training.member
}

# Airflow (scheduler, workers and triggerer): submit and cancel jobs, act as the trainings' account, see checkpoints.
resource "google_project_iam_member" "airflow" {
  project = var.project
  role    = "roles/batch.jobsEditor"
  member  = var.airflow
}

resource "google_service_account_iam_member" "airflow" {
  service_account_id = google_service_account.training.name
  role               = "roles/iam.serviceAccountUser"
  member             = var.airflow
}

resource "google_storage_bucket_iam_member" "airflow" {
  bucket = google_storage_bucket.checkpoints.name
  role   = "roles/storage.objectUser"
  member = var.airflow
}

output "checkpoint_root" { value = "gs://${google_storage_bucket.checkpoints.name}/checkpoints" }
output "images" { value = "${var.region}-docker.pkg.dev/${var.project}/${google_artifact_registry_repository.images.repository_id}" }
output "service_account" { value = google_service_account.training.email }
