variable "fleet" {
  description = "Slug of the fleet. At most 40 characters, because IAM role names have at most 64."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$", var.fleet))
    error_message = "Use letters, digits, - and _, at most 40 characters."
  }
}

variable "stage" {
  description = "Stage of the fleet: staging or production."
  type        = string
  default     = "production"

  validation {
    condition     = contains(["staging", "production"], var.stage)
    error_message = "The stage is staging or production."
  }
}

variable "region" {
  description = "Region of the AWS provider, such as eu-west-1."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9-]+$", var.region))
    error_message = "Write it like eu-west-1."
  }
}

variable "fleet_secret" {
  description = "One of the stage's secrets in COMFYRELAY_FLEET_SECRETS. Terraform stores it in its state."
  type        = string
  sensitive   = true
}

variable "api_base_url" {
  description = "URL at which instances reach the server."
  type        = string

  validation {
    condition     = can(regex("^https?://[^\\s\"\\\\$`]+$", var.api_base_url))
    error_message = "Write it like https://relay.example.com."
  }
}

variable "image" {
  description = "AMI with ComfyUI, its models, ComfyRelay and the AWS CLI."
  type        = string
}

variable "instance_types" {
  description = "Instance types in order of preference, such as g4dn.xlarge."
  type        = list(string)

  validation {
    condition     = length(var.instance_types) > 0
    error_message = "Set at least one instance type."
  }
}

variable "max_machines" {
  description = "Maximum size of the group. Set max_machines of the fleet to the same number."
  type        = number
  default     = 10
}

variable "subnets" {
  description = "Subnets of the instances. With three availability zones, Spot capacity is found more often."
  type        = list(string)

  validation {
    condition     = length(var.subnets) > 0
    error_message = "Set at least one subnet."
  }
}

variable "security_groups" {
  description = "Security groups of the instances. If empty, the module creates one that allows outgoing traffic only."
  type        = list(string)
  default     = []
}

variable "instance_profile" {
  description = "Name of an instance profile. If null, the module creates one whose role can read the fleet's secret."
  type        = string
  default     = null
}

variable "key_name" {
  description = "Key pair for SSH. If null, instances have none."
  type        = string
  default     = null
}

variable "volume_gib" {
  description = "Size of the root volume in GiB. If null, the size in the image."
  type        = number
  default     = null
}

variable "root_device" {
  description = "Name of the root device in the image; use /dev/xvda for Amazon Linux."
  type        = string
  default     = "/dev/sda1"
}

variable "comfyui_folder" {
  description = "Folder of ComfyUI in the image."
  type        = string
  default     = "/opt/ComfyUI"

  validation {
    condition     = can(regex("^/[A-Za-z0-9_./@+-]+$", var.comfyui_folder))
    error_message = "Write it like /opt/ComfyUI."
  }
}

variable "comfyui_service" {
  description = "systemd service of ComfyUI; the worker starts after it. Null if there is none."
  type        = string
  default     = "comfyui.service"

  validation {
    condition     = var.comfyui_service == null || can(regex("^[A-Za-z0-9_.@-]+$", var.comfyui_service))
    error_message = "Write it like comfyui.service."
  }
}

variable "command" {
  description = "Path of the comfyrelay command in the image."
  type        = string
  default     = "/opt/comfyrelay/bin/comfyrelay"

  validation {
    condition     = can(regex("^/[A-Za-z0-9_./@+-]+$", var.command))
    error_message = "Write it like /opt/comfyrelay/bin/comfyrelay."
  }
}

variable "user" {
  description = "User that runs the worker."
  type        = string
  default     = "comfy"

  validation {
    condition     = can(regex("^[a-z_][a-z0-9_-]*$", var.user))
    error_message = "Write it like comfy."
  }
}

variable "budget_usd_per_month" {
  description = "Monthly budget in dollars. If null, there is no budget. Exceeding it only sends emails."
  type        = number
  default     = null
}

variable "budget_email" {
  description = "Address for budget alerts. Required with budget_usd_per_month."
  type        = string
  default     = null
}

variable "cloudwatch_fallback" {
  description = "While no autoscaling loop runs, let CloudWatch launch instances, but not terminate them."
  type        = bool
  default     = false
}

variable "cloudwatch_namespace" {
  description = "Namespace of the metrics; must equal the server's COMFYRELAY_CLOUDWATCH_NAMESPACE."
  type        = string
  default     = "ComfyRelay"
}
