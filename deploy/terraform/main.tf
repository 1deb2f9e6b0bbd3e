# The resources of one fleet, with the names that ComfyRelay expects. `comfyrelay fleet provision` creates the
# same resources: for each fleet, use either this module or the command.

locals {
  group           = "asg-${var.stage}-${var.fleet}"
  launch_template = "lt-${var.stage}-${var.fleet}"
  secret          = "/comfyrelay/${var.stage}/${var.fleet}/fleet-secret"
  prefix          = "comfyrelay-${var.stage}-${var.fleet}"
  from_zero       = "asg-${var.stage}-${var.fleet}-from-zero"
  backlog         = "asg-${var.stage}-${var.fleet}-backlog"
  hook            = "comfyrelay-drain"

  tags = {
    FleetSlug = var.fleet
    Stage     = var.stage
    Name      = local.group
  }
  dimensions = {
    FleetSlug = var.fleet
    Stage     = var.stage
  }

  instance_profile = var.instance_profile == null ? aws_iam_instance_profile.instance[0].name : var.instance_profile
  security_groups  = length(var.security_groups) == 0 ? aws_security_group.instance[*].id : var.security_groups
}

resource "aws_ssm_parameter" "fleet_secret" {
  name  = local.secret
  type  = "SecureString"
  value = var.fleet_secret
  tags  = local.tags
}

resource "aws_launch_template" "fleet" {
  name                   = local.launch_template
  image_id               = var.image
  instance_type          = var.instance_types[0]
  key_name               = var.key_name
  vpc_security_group_ids = local.security_groups
  tags                   = local.tags

  user_data = base64encode(templatefile("${path.module}/../../src/comfyrelay/autoscaling/provisioning/user_data.sh.tftpl", {
    fleet          = var.fleet
    stage          = var.stage
    group          = local.group
    hook           = local.hook
    secret_name    = local.secret
    region         = var.region
    api_base_url   = var.api_base_url
    comfyui_folder = var.comfyui_folder
    command        = var.command
    user           = var.user
    after          = var.comfyui_service == null ? "" : " ${var.comfyui_service}"
  }))

  iam_instance_profile {
    name = local.instance_profile
  }

  metadata_options {
    http_endpoint = "enabled"
    http_tokens   = "required"
    # a worker in a container is one hop further away
    http_put_response_hop_limit = 2
  }

  # the group tags instances, but not their volumes
  tag_specifications {
    resource_type = "volume"
    tags          = local.tags
  }

  dynamic "block_device_mappings" {
    for_each = var.volume_gib == null ? [] : [var.volume_gib]

    content {
      device_name = var.root_device

      ebs {
        volume_size           = block_device_mappings.value
        volume_type           = "gp3"
        delete_on_termination = true
      }
    }
  }
}

resource "aws_autoscaling_group" "fleet" {
  name                    = local.group
  min_size                = 0
  max_size                = var.max_machines
  desired_capacity        = 0
  vpc_zone_identifier     = var.subnets
  capacity_rebalance      = true
  default_instance_warmup = 300
  # rebalancing between zones would terminate machines that run jobs
  suspended_processes = ["AZRebalance"]
  # do not wait for instances: an empty group is complete
  wait_for_capacity_timeout = "0"

  mixed_instances_policy {
    instances_distribution {
      on_demand_base_capacity                  = 0
      on_demand_percentage_above_base_capacity = 0
      spot_allocation_strategy                 = "capacity-optimized-prioritized"
      # up to the On-Demand price
      spot_max_price = ""
    }

    launch_template {
      launch_template_specification {
        launch_template_name = aws_launch_template.fleet.name
        version              = "$Latest"
      }

      dynamic "override" {
        for_each = var.instance_types

        content {
          instance_type = override.value
        }
      }
    }
  }

  dynamic "tag" {
    for_each = local.tags

    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }

  # the control plane sets the number of instances
  lifecycle {
    ignore_changes = [desired_capacity]
  }
}

resource "aws_autoscaling_lifecycle_hook" "drain" {
  name                   = local.hook
  autoscaling_group_name = aws_autoscaling_group.fleet.name
  lifecycle_transition   = "autoscaling:EC2_INSTANCE_TERMINATING"
  heartbeat_timeout      = 300
  default_result         = "CONTINUE"
}
